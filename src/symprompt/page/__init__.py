"""A local page: runs, facts and models in a browser, or in one file; no request goes elsewhere."""
