"""Programs such as users write, run on the stock scheduler and on paceline in turn.

Each module of programs is a command. A program runs in a client process of its own:

    python -m benchmarks.programs.arrays NAME ADDRESS FOLDER
"""
