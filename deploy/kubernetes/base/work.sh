# A worker until its study is over, which then needs no pods any more.
optuna-deadline worker "$OBJECTIVE" --study "$STUDY" \
    --checkpoints "$CHECKPOINTS" $SLOTS &  # several words
worker=$!
trap 'kill -TERM "$worker"' TERM INT
wait "$worker"
status=$?
if kill -0 "$worker" 2> /dev/null; then  # a signal ended the wait, and not yet the worker
    wait "$worker"
    status=$?
fi
if [ "$status" = 0 ]; then
    python "$(dirname "$0")/scale_to_zero.py"
fi
exit "$status"
