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

from polyhead.errors import ConfigError, in_words

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
