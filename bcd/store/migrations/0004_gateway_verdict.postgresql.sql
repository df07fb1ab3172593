-- Whether a node has too many reports waiting for a verdict, not what the verdict is about.
GRANT SELECT (verdict) ON reports TO bcd_gateway;
