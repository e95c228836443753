"""Providers and networks that misbehave on purpose: what tests, benchmarks, `selftest` and the demo stand on."""

from monitor.simulator.behaviour import Behaviour, Content, ErrorKind, Fault
from monitor.simulator.certificates import Certificate
from monitor.simulator.distance import DistanceProxy
from monitor.simulator.process import SimulatorProcess
from monitor.simulator.scenario import Change, Distance, Listener, Scenario
from monitor.simulator.sendlog import Sending, SendKind, SendLog, read_log
from monitor.simulator.server import Simulator

__all__ = [
    "Behaviour",
    "Certificate",
    "Change",
    "Content",
    "Distance",
    "DistanceProxy",
    "ErrorKind",
    "Fault",
    "Listener",
    "Scenario",
    "SendKind",
    "SendLog",
    "Sending",
    "Simulator",
    "SimulatorProcess",
    "read_log",
]
