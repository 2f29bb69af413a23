"""What a page shows, as columns of numbers and one table of texts: small in a file, quick to read in a browser."""
