"""Serving: a queue that knows no HTTP (`batcher`), and what answers requests with it.

As what waits grows, requests step down a ladder of policies that are proven (`ladder`). A sample of answers is
compared with full depth when nothing waits (`audit`).
"""
