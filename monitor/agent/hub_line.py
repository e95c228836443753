"""What an agent knows of the line to its hub: what to log when it is not heard, and what its clock says of ours.

Hides when something is worth a line of the log, and how far an answer that took its time can be believed.
"""

from __future__ import annotations

import structlog

from monitor.agent.hub_client import Beat
from monitor.model import StoreRefuses, StoreUnavailable

WRONG_CLOCK_SECONDS = 2.0
"""A clock further off than that is wrong, not drifting: slots then follow the hub's. A nearer one is left alone."""
PATIENT_FAILURES = 2
log = structlog.get_logger("firsttoken")


class HubLine:
    """What the log says of a hub that cannot be heard, beside what the uplink says of deliveries."""

    def __init__(self) -> None:
        self.trouble: str | None = None
        """Why the hub was not heard last time; None when it was."""
        self._failures = 0
        self._said: str | None = None

    def fails(self, error: StoreUnavailable, *, silent: bool, patient: bool) -> None:
        """It was not heard. What somebody must act on is said once for each reason, anything else until it answers.

        `silent`: somebody else says it. `patient`: somebody else will, so that the first failure is not said.
        """
        self.trouble = str(error)
        self._failures += 1
        kind = self.trouble if isinstance(error, StoreRefuses) else "away"
        if silent or self._said == kind or (patient and self._failures < PATIENT_FAILURES):
            return
        self._said = kind
        if isinstance(error, StoreRefuses):
            log.error("the hub refuses this agent", cause=self.trouble)
        else:
            log.warning("the hub cannot be heard; asking again", cause=self.trouble)

    def answers(self) -> None:
        """It was heard."""
        if self._said is not None:
            log.info("the hub answers")
        self.trouble = self._said = None
        self._failures = 0


def corrected(correction_seconds: float, beat: Beat) -> float:
    """What to add to the machine's clock after a look at the hub's, which is as exact as its answer was quick.

    What holds is left alone unless the corrected clock is certainly wrong: a slow answer, which knows little, neither
    makes a correction nor takes one away.
    """
    certain = WRONG_CLOCK_SECONDS + beat.error_seconds
    if abs(beat.offset_seconds + correction_seconds) <= certain:
        return correction_seconds
    return -beat.offset_seconds if abs(beat.offset_seconds) > certain else 0.0
