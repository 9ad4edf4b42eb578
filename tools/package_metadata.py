"""Metadata of the package that depends on where the repository is: project links, and the README
as a package index shows it, where links to files of the repository need a full address.

A hook of hatchling. The address is ``repository`` in ``pyproject.toml``; while it is empty, the
package has no project links, and links to files become plain text instead of broken links.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"\[([^\]]+)\]\((?!https?://|#)([^)\s]+)\)")
_PAGES = {
    "Documentation": "docs/README.md",
    "Changelog": "CHANGELOG.md",
    "Security": "SECURITY.md",
}


def readme_for_index(text: str, repository: str) -> str:
    """Return the README with links to files as full addresses, or as text without a repository."""
    if not repository:
        return _LINK.sub(r"\1", text)
    return _LINK.sub(lambda link: f"[{link[1]}]({repository}/blob/main/{link[2]})", text)


def project_urls(repository: str) -> dict[str, str]:
    if not repository:
        return {}
    pages = {title: f"{repository}/blob/main/{path}" for title, path in _PAGES.items()}
    return {"Repository": repository, "Issues": f"{repository}/issues", **pages}


class PackageMetadata(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        repository = str(self.config.get("repository", "")).rstrip("/")
        text = (Path(self.root) / "README.md").read_text("utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": readme_for_index(text, repository),
        }
        metadata["urls"] = project_urls(repository)
