"""Order the pages of ``make docs``, add those from outside of docs/, and make links to other files their plain text."""

import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File

PAGES = {f"{name}.md": f"project/{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG", "SECURITY")}
PAGES["examples/gallery/README.md"] = "project/gallery.md"
"""Where the site has pages that lie elsewhere in the repository."""
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s:#]+)(#[\w-]*)?\)")


def on_config(config):
    """Set the navigation: the sections of docs/README.md with the pages that each names first."""
    sections, seen = [], set()
    for section in re.split(r"^## ", Path("docs/README.md").read_text(), flags=re.MULTILINE)[1:]:
        pages = [PAGES.get(path.removeprefix("../"), path) for path in re.findall(r"\]\(([\w./-]+\.md)\)", section)]
        if pages := [page for page in dict.fromkeys(pages) if page not in seen]:
            sections.append({section.partition("\n")[0]: pages})
            seen.update(pages)
    config.nav = ["README.md", *sections]
    return config


def on_files(files, config):
    """Add the pages."""
    for path, page in PAGES.items():
        files.append(File.generated(config, page, abs_src_path=path))
    return files


def on_page_markdown(markdown, page, files, **_):
    """Return a page whose links lead to pages of the site; those to other files of the repository become their text."""
    source = next((path for path, name in PAGES.items() if name == page.file.src_uri), f"docs/{page.file.src_uri}")

    def replaced(link):
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link[3]))
        target = PAGES.get(path, path.removeprefix("docs/"))
        if files.get_file_from_path(target) is None:
            return link[2]
        relative = posixpath.relpath(target, posixpath.dirname(page.file.src_uri) or ".")
        return f"{link[1]}[{link[2]}]({relative}{link[4] or ''})"

    return LINK.sub(replaced, markdown)
