"""Callbacks for trainers of other libraries: a module each, because importing one needs its library."""
