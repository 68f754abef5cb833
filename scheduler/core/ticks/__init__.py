"""Rules of ticks and heartbeats: memory, task policies, extra runs, whole and ending workers."""
