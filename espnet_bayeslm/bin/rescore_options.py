"""Options of `bayeslm rescore`."""

from __future__ import annotations

import dataclasses
from typing import Optional, Sequence

from espnet_bayeslm.loading.components import GPUOptions
from espnet_bayeslm.loading.training_texts import TrainTextOptions
from espnet_bayeslm.nbest.formats import FORMAT_HELP, NBEST_SIZE
from espnet_bayeslm.rescoring.decision import Scales, read_scales
from espnet_bayeslm.rescoring.options import RescoreOptions
from espnet_bayeslm.utils.engine import EngineOptions
from espnet_bayeslm.utils.errors import InputError
from espnet_bayeslm.utils.options import option

SCALES = "scales.yaml"
NO_LMWT = "--word_penalty without --lmwt, and lattices have scales of their own"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RescoreCommand(RescoreOptions, GPUOptions, TrainTextOptions, EngineOptions):
    """Options of `bayeslm rescore`: those of a rescoring, and the files it reads and writes."""

    nbest: str = option("The N-best lists")
    nbest_format: Optional[str] = option(FORMAT_HELP, None)
    nbest_size: int = option("Hypotheses taken of each lattice, at most", NBEST_SIZE)
    output: str = option("The folder to write")
    tune_ref: Optional[str] = option(
        "Tune the weights of the scores on these references (default: the lists' own, where"
        " no scales are given)",
        None,
    )
    lmwt: Optional[float] = option(
        "LMWT (default: 10; of lattices: the scales that come with them)", None
    )
    word_penalty: Optional[float] = option("Cost per word (default: 0)", None)
    ref: Optional[str] = option(
        "References, a Kaldi `text` or a trn (default: --tune_ref, or the lists' own)", None
    )
    token_scores: bool = option(
        "Write the costs of the words too (lmwt.nn.words, </s> last)", False
    )
    merge: Sequence[str] = option(
        "Instead of scoring, join the output of this job (repeatable, all of them)", ()
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_jobs > 1 and self.tune_ref is not None:
            raise InputError(
                f"--tune_ref with --num_jobs {self.num_jobs}: a job has a part of the lists only",
                remedy="Give --tune_ref where the jobs are merged.",
            )
        if self.merge and self.num_jobs > 1:
            raise InputError("--merge with --job or --num_jobs", remedy="Merge all jobs at once.")
        if self.merge and self.uncertainty:
            raise InputError("--uncertainty with --merge", remedy="Leave --uncertainty out.")
        if self.merge and self.tune_lms:
            raise InputError(
                "--tune_lms needs the scores of each LM",
                remedy="Tune in one job, without --merge.",
            )

    def given_scales(self) -> Optional[Scales]:
        """Scales that the options give; None: they give none."""
        given = {"--tune_ref": self.tune_ref, "--scales": self.scales, "--lmwt": self.lmwt}
        used = [name for name, value in given.items() if value is not None]
        if len(used) > 1 or (self.word_penalty is not None and used[:1] not in ([], ["--lmwt"])):
            raise InputError(
                f"more than one source of scales: {', '.join(used)}"
                f" and --word_penalty {self.word_penalty}",
                remedy="Give --tune_ref, --scales, or --lmwt with --word_penalty.",
            )
        if self.scales is not None:
            return self.scales if isinstance(self.scales, Scales) else read_scales(self.scales)
        if self.lmwt is None and self.word_penalty is None:
            return None
        return Scales(
            Scales.lmwt if self.lmwt is None else self.lmwt,
            Scales.word_penalty if self.word_penalty is None else self.word_penalty,
        )
