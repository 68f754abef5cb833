"""Programs that give the same result on the stock scheduler and on paceline."""
