"""Handlers of stimuli: one module per subject, one function ``handle_<op>`` per message."""
