"""``paceline wiretap``: a proxy between peers that shows, checks and counts their messages.

``proxy.py`` forwards bytes and hands messages to an observer; ``report.py`` is that observer;
``command.py`` runs both.
"""
