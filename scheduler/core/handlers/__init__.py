"""What each stimulus does: one module a subject, one function ``handle_<op>`` a message.

Must not know: how a stimulus came, or how its outputs leave.
"""
