"""Finds the credentials and the CA file of a command in its environment."""

import os

from penstock.cli.clients.contexts import environment
from penstock.cli.terminal.failure import Misuse
from penstock.wire.aws.signer import Credentials


def credentials_from_environment() -> Credentials:
    """Return the user's credentials, or dummy ones, which suffice if authentication is off."""
    return found_credentials() or Credentials("penstock", "penstock")


def found_credentials() -> Credentials | None:
    """Return the credentials given by AWS_ACCESS_KEY_ID, PENSTOCK_KEY_ID or AWS_PROFILE, the first
    that is set. The default AWS profile is not used, because its key is usually for AWS."""
    env = environment()
    if env.get("AWS_ACCESS_KEY_ID"):
        return Credentials(
            env["AWS_ACCESS_KEY_ID"],
            env.get("AWS_SECRET_ACCESS_KEY") or "penstock",
            env.get("AWS_SESSION_TOKEN") or None,
        )
    if env.get("PENSTOCK_KEY_ID"):
        return Credentials(env["PENSTOCK_KEY_ID"], env.get("PENSTOCK_SECRET", ""))
    if env.get("AWS_PROFILE"):
        return _profile(env["AWS_PROFILE"])
    return None


def _profile(name: str) -> Credentials:
    import configparser

    path = os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials"
    place = os.path.expanduser(path)  # noqa: PTH111
    found = configparser.ConfigParser(interpolation=None)
    try:
        with open(place, encoding="utf-8") as file:  # noqa: PTH123
            found.read_file(file)
        section = found[name]
        return Credentials(
            section["aws_access_key_id"],
            section["aws_secret_access_key"],
            section.get("aws_session_token"),
        )
    except (OSError, UnicodeDecodeError, configparser.Error, KeyError) as error:
        why = (
            f"{place}: {error.strerror}" if isinstance(error, OSError) else f"it is not in {place}"
        )
        raise Misuse(
            f"cannot read the AWS profile '{name}'",
            why,
            "unset AWS_PROFILE, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        ) from None


def ca_file() -> str | None:
    """Return the file with the certificate of a private CA, or None to use the machine's CAs."""
    return environment().get("PENSTOCK_CA_FILE") or environment().get("AWS_CA_BUNDLE")
