"""Agents that wake at different times: schedules, waves, mailboxes."""
