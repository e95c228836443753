"""Providers and networks that misbehave on purpose: what tests, benchmarks, `selftest` and the demo stand on."""

from monitor.simulator.behaviour import Behaviour, Content, ErrorKind, Fault
from monitor.simulator.sendlog import SendKind, SendLog, read_log
from monitor.simulator.server import Listener, Simulator

__all__ = ["Behaviour", "Content", "ErrorKind", "Fault", "Listener", "SendKind", "SendLog", "Simulator", "read_log"]
