import os
import stat
from pathlib import Path

import pytest

from radchat.errors import ConfigInvalid
from radchat.paths import SOCKET_PATH_LIMIT, Places, private_file, private_folder


def test_radchat_home_moves_everything(tmp_path: Path) -> None:
    places = Places.from_env({"RADCHAT_HOME": str(tmp_path)})
    for path in (places.database, places.lock, places.log, places.models, places.config_file):
        assert path.is_relative_to(tmp_path)


def test_each_place_has_its_own_override(tmp_path: Path) -> None:
    places = Places.from_env({"RADCHAT_HOME": str(tmp_path), "RADCHAT_CACHE_DIR": "/big/disk"})
    assert places.models == Path("/big/disk/models")
    assert places.database == tmp_path / "data" / "radchat.db"


def test_radchat_config_may_name_the_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    assert Places.from_env({"RADCHAT_CONFIG": str(file)}).config_file == file
    assert Places.from_env({"RADCHAT_CONFIG": str(tmp_path)}).config_file.parent == tmp_path


def test_building_places_touches_no_disk(tmp_path: Path) -> None:
    Places.from_env({"RADCHAT_HOME": str(tmp_path / "new")}).socket()
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("length", [10, 80, 120, 200])
def test_the_socket_path_is_always_short_enough(length: int) -> None:
    places = Places.from_env({"RADCHAT_HOME": "/" + "h" * length})
    assert len(os.fsencode(places.socket())) <= SOCKET_PATH_LIMIT


def test_two_homes_without_a_runtime_folder_have_two_sockets() -> None:
    one = Places.from_env({"RADCHAT_DATA_DIR": "/a"}).socket()
    two = Places.from_env({"RADCHAT_DATA_DIR": "/b"}).socket()
    assert one != two


def test_private_things_are_private(tmp_path: Path) -> None:
    folder = private_folder(tmp_path / "a" / "b")
    file = private_file(folder / "history")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_link_in_place_of_our_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(ConfigInvalid, match="link"):
        private_folder(tmp_path / "link")
