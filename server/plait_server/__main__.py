"""``python -m plait_server`` is ``plait``."""

from plait_server.cli import main

main()
