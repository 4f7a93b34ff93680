"""Methods that move KV between the tiers when somebody says so: save, load, warm; and verify."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

from radchat.daemon.arguments import ChatHead, FileText
from radchat.daemon.disk import kept_name
from radchat.daemon.disk_paths import num_in
from radchat.daemon.fill_requests import Wanted, after_path, fill, filled, prediction, with_files
from radchat.daemon.forecast import path_to
from radchat.daemon.handing import beside
from radchat.daemon.loaded import Loaded
from radchat.daemon.streams import Running, Stream, Work
from radchat.daemon.why_methods import WhyMethods
from radchat.engine.request import Fill, Ids
from radchat.errors import InvalidInput, NotFound, RadchatError
from radchat.models.registry import ModelEntry
from radchat.protocol import Event, Where
from radchat_sessions.content import pack_ids

DRAIN_S = 60.0  # for what `cache save` has copied: somebody waits for it
PROGRESS_S = 0.2  # between two lines of a verify


class DiskMethods(WhyMethods):
    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._tasks: set[Running] = set()  # that end with the daemon, at the latest
        self._restores: set[Running] = set()  # those of them nobody listens to

    def _wanted(
        self, where: Where, session: str | None, ref: str | None, head: ChatHead | None
    ) -> Wanted:
        """The path to a REF, or HEAD's, as it was read last. On the desk."""
        if ref is None:
            store, place = self._place(where, session, head)
            at = place.message
        else:
            store, place, target = self._target(where, session, head, ref)
            at = target.message
        path = path_to(store, at)
        if at is None or path is None:
            raise NotFound("nothing was read by a model here yet: there is no KV of it")
        branch = self._branch_at(store, place, at)
        return Wanted(store, place.session.id, place.session.name, branch, at, path)

    def _task(self, stream: Stream, work: Work) -> Stream:
        """A stream whose work ends with its client, or the daemon."""
        self._run(stream, work)
        return stream

    def _run(self, stream: Stream, work: Work) -> Running:
        task = stream.start(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # -- save ------------------------------------------------------------------------------------

    def cache_save(
        self,
        where: Where,
        session: str | None = None,
        ref: str | None = None,
        head: ChatHead | None = None,
    ) -> Stream:
        """Write what is cached of the path to a message now, not only when the engine is idle."""
        stream = Stream("cache.save")

        async def save() -> None:
            stream.say(Event("done", await self._save(where, session, ref, head)))

        return self._task(stream, save)

    async def _save(
        self, where: Where, session: str | None, ref: str | None, head: ChatHead | None
    ) -> dict[str, Any]:
        self._disk.require().try_again()
        wanted = await self._desk.run(lambda: self._wanted(where, session, ref, head))
        if wanted.store is self._desk.ephemeral:
            raise InvalidInput(f"{wanted.name} is ephemeral: it is never kept on disk")
        path, begin = wanted.path, time.monotonic()

        def look() -> tuple[int, dict[str, int]]:
            """Tokens of the path that are on disk, and the blocks that are the path's alone."""
            blocks = self._blocks_of(path.model, path.dtype)
            if blocks is None:
                return 0, {}
            raw = pack_ids(path.ids)
            whole = {b.key: b.num_bytes for b in blocks.blocks(raw) if b.common == b.num_tokens}
            return num_in(blocks.spans(raw), 0, len(path.ids)), whole

        before, old = await beside(look)
        mine = [e for e in self._engines.all if (e.name, e.dtype) == (path.model, path.dtype)]
        cached = await self._write(mine[0], wanted) if mine else 0
        num, blocks = await beside(look)
        new = [size for key, size in blocks.items() if key not in old]
        left = None
        if num < cached:
            left = f"{cached - num:,} tokens were not written: {await self._disk.left()}"
        elif not mine and num < len(path.ids) - 1:
            left = f"{path.model} {path.dtype} is not loaded: there is no KV in memory to write"
        elif num < len(path.ids) - 1:  # the last one runs with the next turn
            left = f"{len(path.ids) - 1 - num:,} tokens of it are no longer cached"
        return {
            "session": wanted.session,
            "name": wanted.name,
            "tokens": max(0, num - before),
            "blocks": len(new),
            "bytes": sum(new),
            "on_disk_tokens": num,
            "path_tokens": len(path.ids),
            "seconds": time.monotonic() - begin,
            "left": left,
        }

    async def _write(self, loaded: Loaded, wanted: Wanted) -> int:
        """Have what is cached of a path written, a block after the other: others' steps go on
        between. How much was cached.
        """
        engine, ids = loaded.engine, wanted.path.ids
        name = kept_name(wanted.session, wanted.branch or wanted.message)
        self._worker.keep(loaded.key, [(name, ids)])
        cached = await self._worker.call(lambda: engine.probe(ids))

        def copy() -> int | None:
            """Bytes that were written before; None: there is nothing to copy."""
            before = int(engine.stats()["disk"]["saved_bytes"])
            return before if engine.save(now=True, only=name) is not None else None

        written = -1
        while (before := await self._worker.call(copy)) is not None and before > written:
            written = before  # else the store has refused the last one
            await self._drained(engine, DRAIN_S)
        return cached

    # -- load, warm ------------------------------------------------------------------------------

    def cache_load(
        self,
        where: Where,
        session: str | None = None,
        ref: str | None = None,
        head: ChatHead | None = None,
    ) -> Stream:
        """Restore what is on disk of the path to a message; its model is loaded for it."""
        stream = Stream("cache.load")

        async def load() -> None:
            self._disk.require()
            wanted = await self._desk.run(lambda: self._wanted(where, session, ref, head))
            path = wanted.path
            await self._fill(stream, "load", path.model, path.dtype, wanted, lambda _: path.ids)

        return self._task(stream, load)

    def cache_warm(
        self,
        where: Where,
        session: str | None = None,
        ref: str | None = None,
        head: ChatHead | None = None,
        files: list[FileText] | None = None,
        system: str | None = None,
        model: str | None = None,
        dtype: str | None = None,
    ) -> Stream:
        """Have the KV ready of all that the next turn after a path reads before its own words, or
        the first turn of a session with these files: restored, or computed.
        """
        stream = Stream("cache.warm")

        async def warm() -> None:
            if files and ref is not None:
                raise InvalidInput("files begin a session: leave out the REF", field="files")
            if not files:
                wanted = await self._desk.run(lambda: self._wanted(where, session, ref, head))
                named, kind = model or wanted.path.model, dtype or wanted.path.dtype
                same = named == wanted.path.model
                await self._fill(
                    stream,
                    "warm",
                    named,
                    kind if same else dtype,
                    wanted,
                    lambda loaded: after_path(loaded, wanted),
                )
                return
            await self._fill(
                stream, "warm", model, dtype, None, lambda of: with_files(of, system, files)
            )

        return self._task(stream, warm)

    async def _fill(
        self,
        stream: Stream,
        how: Fill,
        model: str | None,
        dtype: str | None,
        wanted: Wanted | None,
        read: Callable[[Loaded], Ids],
    ) -> None:
        entry = await self._engines.choose(model, None)
        async with self._engines.using(entry, dtype, stream.say) as loaded:
            begin = time.monotonic()  # loading the model is told by itself
            ids = await self._desk.run(lambda: read(loaded))
            engine = loaded.engine
            tiers = await self._worker.call(lambda: engine.probe_tiers(ids))
            if told := prediction(how, len(ids), tiers, loaded):
                stream.say(told)
            finished = await fill(self._worker, loaded, how, ids, stream.say)
            stream.say(Event("done", filled(how, loaded, wanted, len(ids), finished, begin)))

    # -- verify ----------------------------------------------------------------------------------

    def cache_verify(self) -> Stream:
        """Read every block on disk; damaged ones are deleted, and listed."""
        stream = Stream("cache.verify")

        async def verify() -> None:
            begin, disk = time.monotonic(), self._disk.opened
            if disk is None:  # no mistake of who asks
                raise RadchatError(f"there is nothing to verify: {self._disk.why_not}")
            loop, cancelled, told = asyncio.get_running_loop(), threading.Event(), [0.0]

            def hear(done: int, total: int) -> None:
                if cancelled.is_set():
                    raise InterruptedError
                if done == total or time.monotonic() - told[0] > PROGRESS_S:
                    told[0] = time.monotonic()
                    body = {"stage": "verify", "done": done, "total": total}
                    loop.call_soon_threadsafe(stream.say, Event("progress", body))

            try:
                found = await beside(lambda: disk.verify(hear))
            except asyncio.CancelledError:
                cancelled.set()
                raise
            body = {
                "ok": not found.bad,
                "blocks": found.blocks,
                "bytes": found.bytes,
                "bad": [{"key": key, "why": why} for key, why in found.bad],
                "adopted": found.adopted,
                "swept": found.swept,
                "seconds": time.monotonic() - begin,
            }
            stream.say(Event("done", body))

        return self._task(stream, verify)

    # -- while somebody types ----------------------------------------------------------------------

    async def _restore(
        self, where: Where | None, session: str | None, head: ChatHead | None, loaded: Loaded
    ) -> int:
        """Begin to restore HEAD's path; how many tokens are on disk, and not on the device. A turn
        that comes meanwhile goes on from what is there, or waits for the block being read.
        """
        if where is None or self._disk.store is None:
            return 0
        try:
            wanted = await self._desk.run(lambda: self._wanted(where, session, None, head))
        except NotFound:
            return 0
        path, engine = wanted.path, loaded.engine
        if (path.model, path.tokenizer) != (loaded.name, loaded.tokenizer.hash):
            return 0
        num = (await self._worker.call(lambda: engine.probe_tiers(path.ids))).disk
        if num:
            stream = Stream("restore")
            task = self._run(
                stream, lambda: self._restore_path(loaded.entry, loaded.dtype, path.ids)
            )
            self._restores.add(task)
            task.add_done_callback(self._restores.discard)
        return num

    async def _restore_path(self, entry: ModelEntry, dtype: str, ids: Ids) -> None:
        async with self._engines.using(entry, dtype, lambda _event: None) as loaded:
            await fill(self._worker, loaded, "load", ids, lambda _event: None)
