"""An agent program, simulated: it keeps a conversation, sends it over HTTP, and mangles it on the way as real ones do.

It knows the server by its JSON only and shares no code with it. A ``Profile`` says what a program does to the history that it
sends; ``Agent`` holds a conversation and can go on, retry, go back, edit, truncate it or change its head. Beside the conversation
it keeps the truth that a judge needs: which turn each reply came from, and after which entries it was given (``Asked``).
"""

from tests.support.simulated_client import chat, messages, responses
from tests.support.simulated_client.agent import Agent, Asked, History
from tests.support.simulated_client.entries import Entry, Head, Reminder, Reply, Results, Said
from tests.support.simulated_client.profile import PROFILES, Content, Dialect, Keys, Order, Profile, Thinking

__all__ = [
    "PROFILES",
    "Agent",
    "Asked",
    "Content",
    "Dialect",
    "Entry",
    "Head",
    "History",
    "Keys",
    "Order",
    "Profile",
    "Reminder",
    "Reply",
    "Results",
    "Said",
    "Thinking",
    "chat",
    "messages",
    "responses",
]
