"""Ids of Kafka clients, which have no account in them, told apart by account.

Groups and transactions are kept by all tenants of a node together, so their ids carry the account
inside and never outside:

    account        id outside            id inside
    the node's     orders                orders
    the node's     123456789012/orders   000000000000/123456789012/orders
    another's      orders                123456789012/orders

The second line is why nobody gets at the third: what looks as if it had an account is given one.
An empty id stays empty, to be refused as what it is.
"""

from typing import Final

from penstock.model.names import is_account

_ACCOUNT_CHARS: Final = 12
_MARK: Final = "/"
PREFIX_CHARS: Final = _ACCOUNT_CHARS + len(_MARK)


def scoped_id(account: str, plain_id: str, *, own_account: str) -> str:
    """``own_account``: the node's."""
    if not plain_id or (account == own_account and not _has_account(plain_id)):
        return plain_id
    return f"{account}{_MARK}{plain_id}"


def split_scoped(scoped: str, *, own_account: str) -> tuple[str, str]:
    """Account and the id as its owner knows it."""
    if not _has_account(scoped):
        return own_account, scoped
    return scoped[:_ACCOUNT_CHARS], scoped[PREFIX_CHARS:]


def _has_account(text: str) -> bool:
    mark = text[_ACCOUNT_CHARS:PREFIX_CHARS]
    return mark == _MARK and is_account(text[:_ACCOUNT_CHARS])
