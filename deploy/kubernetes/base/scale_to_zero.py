"""Scale this pod's StatefulSet to zero replicas, since its study has ended."""

import json
import os
import ssl
import urllib.request
from pathlib import Path

ACCOUNT = Path(os.environ.get("ACCOUNT", "/var/run/secrets/kubernetes.io/serviceaccount"))
HOST, PORT = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
NAME = os.environ["OPTUNA_DEADLINE_HOST"].rpartition("-")[0]  # of the pod NAME-0

host = f"[{HOST}]" if ":" in HOST else HOST
request = urllib.request.Request(
    f"https://{host}:{PORT}/apis/apps/v1/namespaces/{os.environ['NAMESPACE']}"
    f"/statefulsets/{NAME}/scale",
    method="PATCH",
    data=json.dumps({"spec": {"replicas": 0}}).encode(),
    headers={
        "Authorization": f"Bearer {(ACCOUNT / 'token').read_text().strip()}",
        "Content-Type": "application/merge-patch+json",
    },
)
trust = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
with urllib.request.urlopen(request, context=trust, timeout=30):
    print("The study is over: no replicas are wanted any more.")
