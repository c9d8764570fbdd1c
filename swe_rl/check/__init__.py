"""What refuses a bad configuration before it costs anything: findings, rules, and probes of the machine."""
