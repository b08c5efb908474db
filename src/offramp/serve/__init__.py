"""Serving: a batching queue that knows no HTTP (`batcher`), and the HTTP server around it (`app`, `server`).

`protocols` has one file for each API that it speaks. Under load, requests step down a ladder of certified policies
(`ladder`). A sample of the predictions is compared with the reference when there is time (`audit`). Clients may be
many, slow (`network`) or hostile (`security`), and workers may die (`processes`).
"""
