read -r line
case "$line" in
*'"half":true'*) echo '{"type":"result","output":"lines: the other half"}' ;;
*)
	echo '{"type":"checkpoint","state":{"half":true}}'
	echo waits >> marks
	until [ -e go ]; do sleep 0.05; done
	echo '{"type":"result","output":"lines: the whole"}' ;;
esac
