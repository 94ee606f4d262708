"""Every expression that SQL texts can say, beside Spark's own answer."""
