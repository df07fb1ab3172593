"""What was acknowledged survives a crash of the server, too."""

import asyncio
import random
import time
from pathlib import Path

from tests.conftest import Rounds
from tests.postgres import Cluster
from tests.store.test_kill import Writer, check


def test_every_acknowledged_write_survives_a_killed_server(
    database_url: str, postgresql: Cluster, tmp_path: Path, rounds: Rounds
) -> None:
    writer = Writer(database_url, tmp_path)
    dice = random.Random(8)
    for number in range(rounds(3, 30)):
        process = writer.launch(number)
        time.sleep(dice.uniform(0, 0.05))
        postgresql.kill()
        try:
            assert process.wait(60) == 7  # said that the outcome is unknown, and stopped
        finally:
            process.kill()
            postgresql.start()
        asyncio.run(check(writer))
