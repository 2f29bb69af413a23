"""Statistical efficiency: how many epochs a batch size needs, from files, fits and measurements."""
