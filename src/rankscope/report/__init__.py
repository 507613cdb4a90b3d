"""Results for people: the terminal, and one self-contained HTML file."""
