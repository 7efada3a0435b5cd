"""The tools of a proof of a law, under one name."""

from cascades.proof.enumeration import *  # noqa: F403
from cascades.proof.law_checks import *  # noqa: F403
from cascades.proof.sampled import *  # noqa: F403
from cascades.proof.table_models import *  # noqa: F403
from cascades.sampler.batching import BatchRequest as BatchRequest
