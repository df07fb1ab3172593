"""What a container needs of NVIDIA's driver, found on this host: ``DriverRoot``.

Read from files only: no program of the vendor is run, and none has to be installed. The rules are
those of the vendor's own tool for CDI specs, https://github.com/NVIDIA/nvidia-container-toolkit
(pkg/nvcdi). May import ``model`` and ``node.edits``; the GPUs' port and the doctor call it.

- ``root``: the scan as a whole, its cache, and what makes it stale
- ``tree``: a folder seen as ``/``; no link leads out of it
- ``libraries``, ``elf``: the versioned libraries, their SONAMEs and links
- ``software``: programs, firmware, configuration files and sockets
- ``hooks``: the vendor's hook program, and what stands in for it where it is not installed
- ``nodes``: device nodes and their numbers, MIG's capabilities
- ``verify``: whether edits are true of the host now
"""

from bcd.node.host.driver.root import DriverRoot
from bcd.node.host.driver.verify import CHAR_LINKS_REMEDY

__all__ = ["CHAR_LINKS_REMEDY", "DriverRoot"]
