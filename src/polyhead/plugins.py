"""Plugins: kinds, strategies, codecs, backends and formats of data that other installed packages register.

A package names its module as an entry point of the group `polyhead.plugins`:

    [project.entry-points."polyhead.plugins"]
    graded = "my_package.graded"

Importing that module registers what is in it. Only packages that somebody installed are asked: no module is ever
imported because a bundle, a project file or a data file names it.
"""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Mapping

from polyhead.errors import ConfigError, PolyheadError, in_words

log = logging.getLogger(__name__)
GROUP = "polyhead.plugins"


def load_plugins() -> tuple[str, ...]:
    """Imports the plugins of all installed packages; the names of their entry points.

    The command line calls it before every command. Raises ConfigError for a plugin that cannot be imported, or that
    registers something under a name that is taken.
    """
    names = []
    for plugin in importlib.metadata.entry_points(group=GROUP):
        package = plugin.dist.name if plugin.dist is not None else plugin.module
        try:
            plugin.load()
        except Exception as error:
            raise ConfigError(
                f"the plugin '{plugin.name}' of the package '{package}' cannot be loaded",
                got=in_words(error),
                do=f"repair it, or remove the package: pip uninstall {package}",
            ) from error
        log.info("loaded the plugin '%s' of the package '%s'", plugin.name, package)
        names.append(plugin.name)
    return tuple(names)


def packages_of(items: Mapping[str, object]) -> dict[str, str]:
    """The package that registered each of these items, by their names; Polyhead's own are left out."""
    packages = {}
    for name, item in items.items():
        top = (item if isinstance(item, type) else type(item)).__module__.partition(".")[0]
        if top != __name__.partition(".")[0]:
            packages[name] = next((p for p, module in _plugin_modules() if module.partition(".")[0] == top), top)
    return packages


def unregistered(error: Exception, raised: type[PolyheadError], file: object, packages: object) -> PolyheadError | None:
    """The error of a file that is whole, and names something that no package registers here; None for other errors.

    `packages` is what the file says of them, as `packages_of` gave it. `unregistered` is the name of what is missing.
    """
    name = getattr(error, "unregistered", None)
    if name is None:
        return None
    package = packages.get(name) if isinstance(packages, Mapping) else None
    where = f", '{package}' where it was written" if isinstance(package, str) else ""
    what = f"{file} is whole, but its {name} is not registered here"
    return raised(what, do=f"install the package that has it{where}", unregistered=name, path=file)


def _plugin_modules() -> list[tuple[str, str]]:
    plugins = importlib.metadata.entry_points(group=GROUP)
    return [(plugin.dist.name, plugin.module) for plugin in plugins if plugin.dist is not None]
