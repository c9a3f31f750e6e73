"""What `helm test` runs in the cluster: both services are ready, and the gateway is as closed as it
should be.
"""

import sys
import urllib.error
import urllib.request


def ask(url):
    """Status of a GET."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


gateway, checkpoint, mode = sys.argv[1:]
wanted = {
    f"{gateway}/readyz": 200,
    f"{checkpoint}/readyz": 200,
    f"{gateway}/v1/jobs": 401 if mode == "token" else 200,
}
found = {url: ask(url) for url in wanted}
sys.exit(0 if found == wanted else f"found {found}, wanted {wanted}")
