"""Where radchat keeps things: XDG folders, each with its own override (docs/cli.md, "Places").

``RADCHAT_HOME`` moves everything at once. Folders are made 0700 when first used, by whoever writes
there; importing or building ``Places`` touches no disk.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from platformdirs.unix import Unix  # the XDG rules, on macOS too

from radchat.errors import ConfigInvalid

SOCKET_PATH_LIMIT = 100  # bytes; sun_path holds 108 on Linux and 104 on macOS


@dataclass(frozen=True, slots=True)
class Places:
    config: Path
    data: Path
    state: Path
    cache: Path
    run: Path | None  # None: a folder of our own under the temp dir

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Places:
        env = os.environ if env is None else env
        xdg = Unix("radchat", appauthor=False)
        home = env.get("RADCHAT_HOME")
        if home:
            root = Path(home).expanduser().absolute()
            config, data, state, cache, run = (
                root / name for name in ("config", "data", "state", "cache", "run")
            )
        else:
            config = Path(xdg.user_config_dir)
            data = Path(xdg.user_data_dir)
            state = Path(xdg.user_state_dir)
            cache = Path(xdg.user_cache_dir)
            runtime = env.get("XDG_RUNTIME_DIR")
            run = Path(runtime) / "radchat" if runtime else None  # type: ignore[assignment]

        def override(name: str, default: Path) -> Path:
            value = env.get(name)
            return Path(value).expanduser().absolute() if value else default

        return cls(
            config=override("RADCHAT_CONFIG", config),
            data=override("RADCHAT_DATA_DIR", data),
            state=override("RADCHAT_STATE_DIR", state),
            cache=override("RADCHAT_CACHE_DIR", cache),
            run=run,
        )

    @property
    def config_file(self) -> Path:
        """RADCHAT_CONFIG may name the file itself or its folder."""
        is_file = self.config.suffix == ".toml" or self.config.is_file()
        return self.config if is_file else self.config / "config.toml"

    @property
    def database(self) -> Path:
        return self.data / "radchat.db"

    @property
    def lock(self) -> Path:
        return self.data / "daemon.lock"

    @property
    def running(self) -> Path:
        """Ids of answers being generated, one append-only file each."""
        return self.data / "running"

    @property
    def history(self) -> Path:
        return self.state / "history"

    @property
    def log(self) -> Path:
        return self.state / "logs" / "daemon.log"

    @property
    def models(self) -> Path:
        return self.cache / "models"

    @property
    def kv(self) -> Path:
        return self.cache / "kv"

    def environ(self) -> dict[str, str]:
        """The variables by which a child in another folder finds these same places."""
        found = {
            "RADCHAT_CONFIG": str(self.config),
            "RADCHAT_DATA_DIR": str(self.data),
            "RADCHAT_STATE_DIR": str(self.state),
            "RADCHAT_CACHE_DIR": str(self.cache),
        }
        if self.run is not None and self.run.name == "run":
            found["RADCHAT_HOME"] = str(self.run.parent)
        elif self.run is not None:
            found["XDG_RUNTIME_DIR"] = str(self.run.parent)
        return found

    def socket(self) -> Path:
        """The daemon's socket; a short folder of our own where the proper one is too long.

        Only the daemon asks: clients read the address from the lock file.
        """
        if self.run is not None:
            path = self.run / "radchat.sock"
            if len(os.fsencode(path)) <= SOCKET_PATH_LIMIT:
                return path
        import tempfile  # 15 ms that only the daemon needs

        name = blake2b(os.fsencode(self.data), digest_size=8).hexdigest()
        folder = Path(tempfile.gettempdir()) / f"radchat-{os.getuid()}"
        if len(os.fsencode(folder)) > SOCKET_PATH_LIMIT - 25:
            folder = Path("/tmp") / f"radchat-{os.getuid()}"  # noqa: S108 - checked by private_folder
        return folder / f"{name}.sock"


def private_folder(path: Path) -> Path:
    """Make ``path`` and missing parents 0700 and ours, or say why it can't be trusted."""
    for folder in (*reversed(path.parents), path):  # mkdir's mode is for the last one only
        if not folder.is_dir():
            folder.mkdir(mode=0o700, exist_ok=True)
    info = path.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid():
        raise ConfigInvalid(f"{path} is not a folder of yours: remove it, or set RADCHAT_HOME")
    if stat.S_IMODE(info.st_mode) & 0o077:
        path.chmod(0o700)
    return path


def private_file(path: Path) -> Path:
    """Make sure the file exists with mode 0600."""
    private_folder(path.parent)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)
    return path
