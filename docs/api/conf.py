"""Settings of Sphinx for `make docs`: the reference, made of the doc-strings alone."""

from sphinx.util import logging

import im3f_jax

project = "im3f_jax"
author = "the authors of im3f_jax"
version = release = im3f_jax.__version__
extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon"]
# A name in single backquotes becomes a link where it is a public name.
default_role = "py:obj"
html_theme = "alabaster"
html_theme_options = {"page_width": "1200px", "sidebar_width": "300px"}
html_sidebars = {"**": ["about.html", "searchbox.html", "localtoc.html"]}
html_copy_source = False
autodoc_typehints_format = "short"
napoleon_google_docstring = False
napoleon_use_ivar = True


def _check_public_names(app, env):
    """Warn of a public name that is not on the page."""
    shown = env.domains["py"].data["objects"]
    wanted = {f"im3f_jax.{name}": name for name in im3f_jax._PUBLIC}
    wanted |= {module: name for name, module in im3f_jax._MODULES.items()}
    for full, name in wanted.items():
        if full not in shown:
            logging.getLogger(__name__).warning("%s is public and not shown", name)


def setup(app):
    """Register the check; Sphinx calls this."""
    app.connect("env-check-consistency", _check_public_names)
