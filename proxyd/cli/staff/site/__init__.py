"""Commands: the name, texts and notices of the site, and alerts to operators."""
