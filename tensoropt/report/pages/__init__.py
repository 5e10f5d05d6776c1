"""Reports as pages for a browser and a notebook."""
