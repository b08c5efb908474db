"""Serving: a batching queue that knows no HTTP (`batcher`), and the HTTP server around it (`app`, `server`).

Under load, requests step down a ladder of certified policies (`ladder`). While nothing waits, a sample of the
predictions is compared with full depth (`audit`).
"""
