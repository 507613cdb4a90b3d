"""The page: its built client in `static/`, its sources in `ui/`."""
