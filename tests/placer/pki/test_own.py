"""The placer's own certificates: made, kept, renewed in time and under the right names."""

from pathlib import Path

import pytest

from bcd.model.errors import BadConfiguration, BrokenFile
from bcd.placer.pki.own import OwnCredentials
from bcd.signing.certificates import Role, serial_hex
from bcd.signing.keys import key_id
from bcd.store import certificates
from tests.clock import DatabaseClock
from tests.placer.world import World

DAY_MS = 86_400_000
NAMES = ("localhost", "127.0.0.1")


def own(world: World, folder: Path, names: tuple[str, ...] = NAMES) -> OwnCredentials:
    return OwnCredentials(folder / "api", world.authority, (Role.PLACER, "placer"), names)


async def test_missing_credentials_are_made_and_recorded(world: World, tmp_path: Path) -> None:
    mine = own(world, tmp_path)
    made = await world.database.write(mine.renew_if_due)
    assert made is not None
    assert mine.current is made
    (record,) = await world.database.read(certificates.by_key, key_id(made.key.public_key()))
    assert record.serial == serial_hex(made.leaf)
    assert await world.database.write(mine.renew_if_due) is None


async def test_a_restart_goes_on_with_what_is_on_disk(world: World, tmp_path: Path) -> None:
    made = await world.database.write(own(world, tmp_path).renew_if_due)
    after = own(world, tmp_path)
    assert await world.database.write(after.renew_if_due) is None
    assert made is not None
    assert after.current is not None
    assert after.current.leaf == made.leaf


async def test_half_of_its_life_a_new_key_takes_over(
    world: World, tmp_path: Path, clock: DatabaseClock
) -> None:
    clock.advance(0)
    mine = own(world, tmp_path)
    first = await world.database.write(mine.renew_if_due)
    clock.advance(14 * DAY_MS)
    assert await world.database.write(mine.renew_if_due) is None
    clock.advance(1 * DAY_MS)
    second = await world.database.write(mine.renew_if_due)
    assert first is not None
    assert second is not None
    assert key_id(first.key.public_key()) != key_id(second.key.public_key())


async def test_other_names_make_another_certificate_at_once(world: World, tmp_path: Path) -> None:
    await world.database.write(own(world, tmp_path).renew_if_due)
    assert await world.database.write(own(world, tmp_path, NAMES[::-1]).renew_if_due) is None
    renamed = own(world, tmp_path, (*NAMES, "placer.example"))
    assert await world.database.write(renamed.renew_if_due) is not None


async def test_what_cannot_be_read_or_written_is_named(world: World, tmp_path: Path) -> None:
    (tmp_path / "api" / "credentials.pem").mkdir(parents=True)
    with pytest.raises(BrokenFile, match=r"credentials\.pem: cannot be read.*remove it"):
        await world.database.write(own(world, tmp_path).renew_if_due)
    (tmp_path / "file").touch()
    with pytest.raises(BrokenFile, match="name another folder"):
        await world.database.write(own(world, tmp_path / "file").renew_if_due)
    (tmp_path / "link").symlink_to(tmp_path / "nowhere" / "at" / "all")
    with pytest.raises(BadConfiguration, match="cannot be written"):
        await world.database.write(own(world, tmp_path / "link").renew_if_due)
