"""Reads metrics from standard input as Prometheus does, and prints their families as JSON."""

import json
import sys

from prometheus_client.parser import text_string_to_metric_families

families = []
for family in text_string_to_metric_families(sys.stdin.read()):
    is_counter = family.type == 'counter'
    labels = {label for sample in family.samples for label in sample.labels} - {'le'}
    families.append({
        'name': family.name + ('_total' if is_counter else ''), 'type': family.type, 'help': family.documentation,
        'labels': sorted(labels), 'samples': len(family.samples),
    })
print(json.dumps(families))
