"""What became of the attempts of a worker: counted, measured, and said where a person may want to know."""

from dataclasses import dataclass, field

import structlog

from checkpoints.jobs import Ended, Job, Outcome
from ingest import metrics

log = structlog.get_logger()


@dataclass
class Tally:
    outcomes: dict[Outcome, int] = field(default_factory=dict)  # written down
    died: int = 0  # of them: jobs that wait for a person now
    lost: int = 0  # claims; nothing was written

    def count(self, outcome: Outcome) -> int:
        return self.outcomes.get(outcome, 0)

    def written(self, job: Job, ended: Ended, *, dead: bool) -> None:
        self.outcomes[ended.outcome] = self.count(ended.outcome) + 1
        dead = dead and ended.outcome is not Outcome.CANCELLED
        self.died += dead
        outcome = Outcome.DEAD if dead and ended.outcome is Outcome.RETRY else ended.outcome
        metrics.attempts.labels(job.source, outcome.value).inc()
        facts = {"job": job.id, "kind": job.kind, "source": job.source, "attempt": f"{job.attempt}/{job.max_attempts}"}
        error = (ended.error or "").rpartition("\n")[2]
        if dead:
            log.error("the job is dead: a person must look at it", error=error, **facts)
        elif ended.outcome is Outcome.RETRY:
            log.warning("the job failed and comes again", error=error, seconds=round(ended.delay, 1), **facts)
        else:
            log.debug("the job ended", outcome=ended.outcome.value, **facts)

    def lose(self, job: Job, why: str) -> None:
        self.lost += 1
        metrics.leases_lost.labels(job.source).inc()
        metrics.attempts.labels(job.source, Outcome.LOST.value).inc()
        log.warning(
            "lost the job: its result does not count",
            job=job.id, kind=job.kind, source=job.source, attempt=job.attempt, fence=job.fence, why=why,
        )  # fmt: skip
