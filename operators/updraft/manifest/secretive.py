"""Decide whether a variable of `env` looks like a secret. Pure. Every user who may see the job can read its manifest;
nobody can read a stored secret."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from updraft.manifest.errors import FieldError, join_path

LOOK_CHARACTERS = 20_000  # the number of characters that is searched at each end of a value

# Names are split into words, and most of these words count only as the last one. So TOKENIZERS_PARALLELISM, MAX_TOKENS,
# KEY_COLUMN and TOKEN_LIMIT do not look secret.
_LAST = re.compile(
    r"(?:PASSWORD|PASSWD|PASSPHRASE|SECRETS?|TOKEN|CREDENTIALS?|APIKEY|SECRETKEY|ACCESSKEY|PRIVATEKEY|FERNETKEY)\d*$"
    r"|^(?:KEY|PWD|PASS|PASSCODE|AUTH|JWT|PAT|COOKIE|BEARER)\d*$"
)
_WITHIN = re.compile(
    r"(?:^|_)(?:PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS|(?:API|ACCESS|SECRET|PRIVATE|SIGNING|ENCRYPTION)_KEY"
    r"|(?:CLIENT|APP)_SECRET|CONN(?:ECTION)?_STR(?:ING)?)(?:_|$)"
    # The token's owner may follow the word TOKEN.
    r"|^TOKEN_(?:API|AWS|AZURE|DB|DOCKER|GCP|GH|GITHUB|GITLAB|HF|HUB|HUGGINGFACE|KAGGLE|MLFLOW|NGC|NPM|OPENAI|PYPI"
    r"|REGISTRY|SLACK|WANDB)$"
)
# Words before such a word that make a name harmless: terms of machine learning, of tables and of switches.
_HARMLESS = {
    "TOKEN": {
        "BOS", "CLS", "END", "EOS", "IMAGE", "MASK", "NEXT", "PAD", "PER", "SEP", "SPECIAL", "START", "STOP", "UNK",
    },
    "KEY": {
        "CACHE", "COLUMN", "DATA", "DICT", "FEATURE", "FOREIGN", "GROUP", "IMAGE", "INPUT", "JOIN", "LABEL", "METRIC",
        "OUTPUT", "PARTITION", "PRIMARY", "SORT", "TARGET", "TEXT",
    },
    "AUTH": {"DISABLE", "ENABLE", "NO", "SKIP", "USE"},
    "PASS": {
        "BACKWARD", "BAND", "FIRST", "FORWARD", "HIGH", "LOW", "MULTI", "NUM", "ONE", "PER", "SECOND", "SINGLE", "TWO",
    },
}  # fmt: skip
_VALUE = re.compile(
    r"\bAKIA[0-9A-Z]{16}\b|\bgh[pousr]_[A-Za-z0-9]{30,}|\bgithub_pat_\w{30,}|\bglpat-[\w-]{20,}|\bhf_[A-Za-z0-9]{30,}"
    r"|\bsk-[\w-]{20,}|\bxox[abprs]-[\w-]{10,}|\bAIza[\w-]{35}|\beyJ[\w-]{10,2000}\.[\w-]{10,2000}\."
    r"|-----BEGIN [A-Z ]*PRIVATE KEY"
    r"|(?:AccountKey|SharedAccessKey|SharedAccessSignature)\s*="
    r"|://[^/@:\s]{1,200}:[^/@\s]{1,200}@",
    re.ASCII,
)


def looks_secret(name: str, value: str) -> bool:
    """Return whether the name or the value is that of a password, a key or a token."""
    upper = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).upper()
    words = [word for word in upper.split("_") if word and not word.isdecimal()]
    named = bool(words) and _LAST.search(words[-1]) is not None
    if named and len(words) == 1 and words[0] in ("KEY", "PWD"):
        named = False
    if named and len(words) > 1 and words[-2] in _HARMLESS.get(words[-1], ()):
        named = False
    if len(value) > 2 * LOOK_CHARACTERS:
        value = f"{value[:LOOK_CHARACTERS]}\n{value[-LOOK_CHARACTERS:]}"
    return named or _WITHIN.search(upper) is not None or _VALUE.search(value) is not None


def secrets_in_env(env: Mapping[str, str]) -> Iterator[FieldError]:
    """Yield an error for each variable that looks like a secret; its value is not repeated."""
    for name, value in env.items():
        if looks_secret(name, value):
            stored = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "secret"
            problem = "looks like a secret, and every user who may see the job can read env"
            allowed = (
                f"it under secrets, as [{{name: {stored}, key: value, as: {name}}}], and store it with "
                f"`updraft secrets set {stored}`; if it is none, rename the variable or use params"
            )
            yield FieldError(join_path("env", name), None, problem, allowed)
