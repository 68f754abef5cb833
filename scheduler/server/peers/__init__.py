"""Connected peers: requests, worker and client streams, and outgoing connections."""
