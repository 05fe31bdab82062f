"""Judges the webhooks of a JSON list on stdin. Prints for each: whether it is genuine."""
import json
import sys

import berth


def is_genuine(vector):
    try:
        message = berth.verify_webhook(vector["secrets"], vector["headers"], vector["body"].encode())
    except berth.WebhookVerificationError:
        return False
    return (message["id"], message["type"], message["data"]["name"]) == ("evt_1", "vm.started", "w\u00e9b")


print(json.dumps([is_genuine(each) for each in json.load(sys.stdin)]))
