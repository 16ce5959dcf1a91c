"""A chapter has buttons that open it on Colab and on Binder, if `_config.yml` says where the repository is."""


def only_with_a_repository(app, config):
    options = config.html_theme_options
    if not options.get("repository_url"):  # the theme fails without one
        options["launch_buttons"] = {"thebe": False}


def setup(app):
    app.connect("config-inited", only_with_a_repository)
