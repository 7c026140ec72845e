"""Folders to and from the hub of huggingface: its names, and each failure as one sentence.

The token is huggingface's own business (HF_TOKEN, or the file of ``hf auth login``): it goes into
the header of requests, and is neither kept here nor shown, also where a server's answer repeats it.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from symprompt.errors import ConfigError, RunError

_NAME = re.compile(r"(\w[\w.-]*/\w[\w.-]*)(?:@([^\s@]+))?", re.ASCII)
_PLAIN = re.compile(r"(\w([\w.-]*\w)?/)?\w([\w.-]*\w)?", re.ASCII)
MAIN = "main"
"""The branch that a name without a revision means."""


class Sent(NamedTuple):
    """Where a folder was put."""

    name: str
    address: str


def is_hub_name(name: str) -> bool:
    """Return whether a name can only be the hub's: owner/name, or owner/name@revision.

    A path is one that is there, or whose first folder is: a folder that was misspelt is not looked
    for elsewhere.
    """
    known = _NAME.fullmatch(name) is not None
    return known and not Path(name).exists() and not Path(name.partition("/")[0]).exists()


def split_name(name: str) -> tuple[str, str]:
    """Return a name without its revision, and the revision ("" where none is named)."""
    plain, _, revision = name.partition("@")
    return plain, revision


def require_name(name: str) -> None:
    """Refuse what is no name of the hub.

    Raises:
        ConfigError: naming what is allowed.
    """
    shaped = _PLAIN.fullmatch(name) is not None and len(name) <= 96
    if not shaped or any(part in name for part in ("--", "..")) or name.endswith(".git"):
        raise ConfigError(
            f"{name!r} is no name of the hub; give owner/name, of letters, digits, -, _ and ., "
            "without -- and .., 96 characters at most."
        )


def require_token() -> str:
    """Return the token of the hub.

    Raises:
        ConfigError: the hub must not be asked, or there is no token.
    """
    from huggingface_hub import constants, get_token

    if constants.HF_HUB_OFFLINE:
        raise ConfigError(
            "HF_HUB_OFFLINE is set, so nothing is sent to the hub; unset it, or look with "
            "--dry-run at what would be sent."
        )
    token = get_token()
    if not token:
        raise ConfigError(
            "the hub takes nothing without a token; set HF_TOKEN, or log in once with: hf auth "
            "login."
        )
    return token


@contextmanager
def offline() -> Iterator[None]:
    """Ask the hub for nothing while the block runs; what is in its cache is read."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def send_folder(
    folder: Path,
    name: str,
    *,
    message: str,
    private: bool = False,
    revision: str = "",
    overwrite: bool = False,
) -> Sent:
    """Put a folder on the hub, as one commit where it is small.

    Args:
        name: owner/name, or a name alone, which is the token's owner's.
        message: of the commit.
        private: only its owner sees it.
        revision: a branch, made if it is not there; none is main.
        overwrite: take the place of what is there; git keeps that.

    Raises:
        SympromptError: the name or the token is refused, something is there already, or the hub
            cannot be reached.
    """
    from huggingface_hub import HfApi

    require_name(name)
    token = require_token()
    branch = "" if revision == MAIN else revision
    api = HfApi(token=token, library_name="symprompt")
    where = f"{name}@{branch}" if branch else name
    owner = name.partition("/")[0] if "/" in name else "your account"
    said = {
        0: f"the hub ({api.endpoint}) cannot be reached, or the connection broke ({{why}}); "
        "connect, and push again",
        400: f"the hub does not take {where} ({{why}})",
        401: "the hub refuses the token (401); make one with write access among your account's "
        "settings, and set HF_TOKEN or log in anew with: hf auth login",
        403: f"the token may not write {name} (403); give one with write access to {owner}, or "
        "push to a name of your own",
        404: f"the hub has no place for {where} (404): no such owner, or the token may not see it",
        409: f"{where} is on the hub already; --overwrite puts this in its place, or choose "
        f"another name{'' if branch else ' or --revision'}",
    }
    there = overwrite or bool(branch)
    with _told(said, token), warnings.catch_warnings():
        # The hub's opinion of a card's metadata is for its page.
        warnings.simplefilter("ignore")
        made = api.create_repo(name, private=private or None, exist_ok=there)
        if private and there and not api.model_info(made.repo_id).private:
            raise ConfigError(
                f"{made.repo_id} is on the hub already, and public; make it private there, or "
                "choose another name."
            )
        if branch:
            api.create_branch(made.repo_id, branch=branch, exist_ok=overwrite)
        # What was made by then is there, and empty.
        again = f"push again with --overwrite, as {where} was made"
        said[0] = said[0].replace("push again", again)
        said |= {500: f"the hub fails ({{why}}); {again}", 503: f"the hub is busy; {again}"}
        api.upload_folder(
            repo_id=made.repo_id,
            folder_path=folder,
            commit_message=message,
            revision=branch or None,
            delete_patterns="*" if there else None,
        )
    return Sent(f"{made.repo_id}@{branch}" if branch else made.repo_id, str(made))


def fetch_file(name: str, file: str) -> Path:
    """Return a file of the hub's, fetched into huggingface's cache; its folder is the commit's.

    Args:
        name: owner/name or owner/name@revision.

    Raises:
        RunError: there is none, or the hub cannot be reached and it is not in the cache.
    """
    from huggingface_hub import hf_hub_download

    plain, revision = split_name(name)
    with fetching(name, file):
        require_answer(plain, file, revision)
        return Path(hf_hub_download(plain, file, revision=revision or None))


def require_answer(name: str, file: str, revision: str = "") -> None:
    """Ask the hub once for a file that is not in its cache, and raise what its library raises.

    The library would ask again and again for half a minute before it gives up.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache

    if try_to_load_from_cache(name, file, revision=revision or None) is None:
        get_hf_file_metadata(hf_hub_url(name, file, revision=revision or None))


def fetch_folder(name: str, commit: str, patterns: Sequence[str]) -> Path:
    """Return the files of a commit that match patterns, in huggingface's cache; as above."""
    from huggingface_hub import snapshot_download

    with fetching(name, "whole commit"):
        found = snapshot_download(
            split_name(name)[0], revision=commit, allow_patterns=list(patterns)
        )
    return Path(found)


def cache_place(name: str, commit: str) -> Path:
    """Return the folder in huggingface's cache for what is made of a commit; it is there."""
    from huggingface_hub import cached_assets_path, constants

    plain = split_name(name)[0].replace("/", "--")
    assets = constants.HF_ASSETS_CACHE
    place: Path = cached_assets_path("symprompt", "runs", f"{plain}--{commit}", assets_dir=assets)
    return place


@contextmanager
def fetching(name: str, file: str, what: str = "run") -> Iterator[None]:
    """Turn what keeps a file of the hub's from being fetched into one sentence.

    Args:
        name: of what is no folder here.
        file: without which it is nothing that can be read.
        what: is meant to be fetched: a run or a model.

    Raises:
        RunError: the sentence.
    """
    from huggingface_hub import constants, get_token
    from huggingface_hub.errors import (
        EntryNotFoundError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RevisionNotFoundError,
    )

    plain, revision = split_name(name)
    start = f"there is no folder {name!r}, and"
    missing = (
        f"{start} the hub has no {plain}, or it is private and the token (HF_TOKEN, or hf auth "
        "login) may not read it"
    )
    said = {
        0: f"{start} the hub, where it may be a {what}'s name, cannot be reached ({{why}}); give "
        f"the path of a {what} folder, or connect",
        401: missing,
        403: f"the hub does not let this token read {plain} (403); ask its owner",
        404: missing,
    }
    with _told(said, None if constants.HF_HUB_OFFLINE else get_token()):
        try:
            yield
        except (LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
            if not constants.HF_HUB_OFFLINE:
                raise
            raise RunError(
                f"{start} HF_HUB_OFFLINE keeps from looking for it on the hub, whose cache does "
                f"not have it; give the path of a {what} folder, or unset HF_HUB_OFFLINE."
            ) from error
        except RevisionNotFoundError as error:
            raise RunError(
                f"{plain} on the hub has no revision {revision!r}; name a branch, a tag or a "
                "commit of it after @."
            ) from error
        except EntryNotFoundError as error:
            raise RunError(
                f"{plain} on the hub has no {file} and is no {what}; name another, or give the "
                f"path of a {what} folder."
            ) from error


@contextmanager
def _told(said: Mapping[int, str], token: str | None) -> Iterator[None]:
    """Turn what the hub's library raises into one sentence, without the token.

    Args:
        said: the sentence for each status of a refusal; for 0, that nobody answers.
    """
    from huggingface_hub import constants
    from huggingface_hub.errors import HfHubHTTPError

    try:
        yield
    except (ConfigError, RunError):
        raise
    except Exception as error:  # of whichever client the hub's library has
        answers = [own for own in _chain(error) if isinstance(own, HfHubHTTPError)]
        response = next((own.response for own in answers if own.response is not None), None)
        status = 0 if response is None else int(response.status_code)
        other = f"the hub ({constants.ENDPOINT}) answers with an error ({{why}}); try again later"
        sentence = said.get(status, other).replace("{why}", _why(error, token))
        raise RunError(f"{sentence}.") from None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _why(error: BaseException, token: str | None) -> str:
    """Return the first line of what the hub says, or else of the error that caused it all."""
    found = list(_chain(error))
    texts = [str(getattr(own, "server_message", "") or "").strip() for own in found]
    texts += [str(own).strip() for own in reversed(found)]
    text = next((own for own in texts if own), type(error).__name__)
    line = next(own.strip() for own in text.splitlines() if own.strip())
    return (line.replace(token, "***") if token else line).rstrip(".")
